{{- /* Start of every name: lower-case letters, digits and hyphens, a letter first, as names of Services have to be.
A StatefulSet's is at most 52 characters. */ -}}
{{- define "moca.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- if regexMatch "^[0-9]" $name -}}
{{- $name = printf "moca-%s" .Release.Name -}}
{{- end -}}
{{- $name | replace "." "-" | trunc 45 | trimAll "-" -}}
{{- end -}}

{{- define "moca.labels" -}}
app.kubernetes.io/name: moca
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* Labels of the pods of a component: dict "root" $ "name" "api". */ -}}
{{- define "moca.selector" -}}
app.kubernetes.io/name: moca
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- /* Selector of the pods that use the store. */ -}}
{{- define "moca.clients" -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name | quote }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [api, worker, webhooks]}
{{- end -}}

{{- /* Secret with the password of the store: a given one, or that of the chart's own Valkey. */ -}}
{{- define "moca.passwordSecret" -}}
{{- .Values.store.passwordSecret | default (ternary "" (printf "%s-store" (include "moca.name" .)) (ne .Values.store.url "")) -}}
{{- end -}}

{{- /* Settings of every process. Whole numbers of values are floats, which would print as 6.7e+07. */ -}}
{{- define "moca.settings" -}}
MOCA_REDIS_URL: {{ .Values.store.url | default (printf "redis://%s-valkey:6379/0" (include "moca.name" .)) | quote }}
{{- if include "moca.passwordSecret" . }}
MOCA_REDIS_PASSWORD_FILE: /run/secrets/moca/valkey_password
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- $whole := and (kindIs "float64" $value) (eq (float64 (int64 $value)) $value) }}
{{ $name }}: {{ ternary (int64 $value) $value $whole | quote }}
{{- end }}
{{- end -}}

{{- define "moca.hardened" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Beginning of a pod: dict "root" $ "name" "api" "user" 10001 "config" TEXT; another text means new pods. */ -}}
{{- define "moca.pod" -}}
metadata:
  labels:
    {{- include "moca.selector" . | nindent 4 }}
  annotations:
    checksum/config: {{ .config | sha256sum }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  # A Service whose name begins with `moca` would otherwise set MOCA_ variables.
  enableServiceLinks: false
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ .user }}
    runAsGroup: {{ .user }}
    fsGroup: {{ .user }}
    seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.podSpec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "moca.passwordVolume" -}}
{{- with include "moca.passwordSecret" . -}}
- name: store
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
    items: [{key: {{ $.Values.store.passwordKey | quote }}, path: valkey_password}]
{{- end }}
{{- end -}}
