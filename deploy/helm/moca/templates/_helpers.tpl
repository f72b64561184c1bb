{{- /* Start of every name: lower-case letters, digits and hyphens, a letter first, as names of Services have to be.
A StatefulSet's is at most 52 characters. */ -}}
{{- define "moca.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- if regexMatch "^[0-9]" $name -}}
{{- $name = printf "moca-%s" .Release.Name -}}
{{- end -}}
{{- $name | replace "." "-" | trunc 46 | trimAll "-" -}}
{{- end -}}

{{- define "moca.labels" -}}
app.kubernetes.io/part-of: moca
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Labels that select the pods of a component: dict "root" $ "name" "api". The monitoring relies on the first. */ -}}
{{- define "moca.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end -}}

{{- /* Selector of the pods that use Redis. */ -}}
{{- define "moca.clients" -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name | quote }}
matchExpressions:
  - {key: app.kubernetes.io/name, operator: In, values: [api, worker, webhooks]}
{{- end -}}

{{- /* Image of a component: dict "root" $ "name" "api". */ -}}
{{- define "moca.image" -}}
{{- $image := .root.Values.image -}}
{{- $tag := $image.tag | default (printf "%s-cpu" .root.Chart.AppVersion) -}}
{{- if and (eq .name "worker") .root.Values.worker.gpu.enabled -}}
{{- $tag = $image.gpuTag | default (printf "%s-cu130" .root.Chart.AppVersion) -}}
{{- else if eq .name "api" -}}
{{- $tag = .root.Values.api.tag | default $tag -}}
{{- end -}}
{{- printf "%s:%s" $image.repository $tag -}}
{{- end -}}

{{- define "moca.passwordSecret" -}}
{{- /* Another name than the default of redis.passwordSecret, also in a release `moca`. */ -}}
{{- if .Values.redis.password }}{{ include "moca.name" . }}-redis-password{{ else }}{{ .Values.redis.passwordSecret }}{{ end -}}
{{- end -}}

{{- /* Whole numbers of values are floats, which print as 6.7e+07. */ -}}
{{- define "moca.setting" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- /* Data of the ConfigMap that every process reads. */ -}}
{{- define "moca.settings" -}}
{{- $redis := printf "%s-redis" (include "moca.name" .) -}}
{{- $own := printf "redis://%s:6379/0" $redis -}}
{{- if .Values.redis.sentinels -}}
{{- $own = printf "redis+sentinel://%[1]s-0.%[1]s:26379,%[1]s-1.%[1]s:26379,%[1]s-2.%[1]s:26379/moca/0" $redis -}}
{{- end -}}
MOCA_REDIS_URL: {{ .Values.redis.url | default $own | quote }}
{{- if include "moca.passwordSecret" . }}
MOCA_REDIS_PASSWORD_FILE: /run/secrets/moca/redis_password
{{- end }}
{{- range $name, $value := .Values.settings }}
{{ $name }}: {{ include "moca.setting" $value | quote }}
{{- end }}
{{- end -}}

{{- /* Labels and annotations of a pod: dict "root" $ "name" "api" "config" TEXT; another text means new pods. */ -}}
{{- define "moca.podMetadata" -}}
labels:
  {{- include "moca.selector" . | nindent 2 }}
annotations:
  checksum/config: {{ print .config .root.Values.redis.password | sha256sum }}
  {{- with (index .root.Values .name).podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* Beginning of a pod's spec: dict "root" $ "name" "api" "user" 10001. */ -}}
{{- define "moca.pod" -}}
{{- $component := index .root.Values .name -}}
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
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $apart := and (eq .name "redis") $component.sentinels (not (hasKey $component.affinity "podAntiAffinity")) -}}
{{- if or $apart $component.affinity }}
affinity:
  {{- with $component.affinity }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if $apart }}
  podAntiAffinity:
    # Two on one node would die together.
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "moca.selector" . | nindent 12 }}
  {{- end }}
{{- end }}
{{- $tolerations := $component.tolerations -}}
{{- if and (eq .name "worker") $component.gpu.enabled -}}
{{- /* Nodes with GPUs often have this taint. */ -}}
{{- $tolerations = prepend $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "moca.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "moca.selector" . | nindent 8 }}
{{- end -}}

{{- define "moca.hardened" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Beginning of a container of the service: dict "root" $ "name" "api". */ -}}
{{- define "moca.container" -}}
{{- $component := index .root.Values .name -}}
name: {{ .name }}
image: {{ include "moca.image" . | quote }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . | quote }}
{{- end }}
args: [{{ .name }}]
envFrom:
  - configMapRef: {name: {{ include "moca.name" .root }}}
{{ include "moca.hardened" . }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if ne .name "webhooks" }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
  {{- if include "moca.passwordSecret" .root }}
  - {name: redis, mountPath: /run/secrets/moca, readOnly: true}
  {{- end }}
  {{- if eq .name "webhooks" }}
  - {name: hooks, mountPath: /run/secrets/hooks, readOnly: true}
  {{- end }}
  {{- with $component.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* Volumes of a pod of the service: dict "root" $ "name" "api". */ -}}
{{- define "moca.volumes" -}}
{{- $models := .root.Values.models.volume -}}
volumes:
  - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
  {{- if eq .name "webhooks" }}
  {{- else if $models.enabled }}
  - name: models
    persistentVolumeClaim:
      claimName: {{ $models.existingClaim | default (printf "%s-models" (include "moca.name" .root)) | quote }}
      readOnly: true
  {{- else }}
  - {name: models, emptyDir: {}}
  {{- end }}
  {{- include "moca.passwordVolume" .root | nindent 2 }}
  {{- if eq .name "webhooks" }}
  - {name: hooks, secret: {secretName: {{ .root.Values.webhooks.secret | quote }}, defaultMode: 0440}}
  {{- end }}
  {{- with (index .root.Values .name).extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "moca.passwordVolume" -}}
{{- with include "moca.passwordSecret" . -}}
- name: redis
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
    {{- if and (not $.Values.redis.password) (ne $.Values.redis.passwordKey "redis_password") }}
    items: [{key: {{ $.Values.redis.passwordKey | quote }}, path: redis_password}]
    {{- end }}
{{- end }}
{{- end -}}

{{- /* Copies the models of an image, unless they are on a volume: dict "root" $ "name" "api". */ -}}
{{- define "moca.models" -}}
{{- if not .root.Values.models.volume.enabled -}}
initContainers:
  # The models of an image: by default the service's own, which has the built-in ones alone.
  - name: models
    image: {{ .root.Values.models.image | default (include "moca.image" .) | quote }}
    {{- with .root.Values.image.pullPolicy }}
    imagePullPolicy: {{ . | quote }}
    {{- end }}
    command: [cp, -R, /models/., /mnt/models]
    {{- include "moca.hardened" . | nindent 4 }}
    resources:
      requests: {cpu: 10m, memory: 32Mi}
      limits: {memory: 128Mi}
    volumeMounts:
      - {name: models, mountPath: /mnt/models}
{{- end -}}
{{- end -}}

{{- /* Probes of a process by its metrics; its seconds to start. */ -}}
{{- define "moca.metricsProbes" -}}
startupProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 1
  failureThreshold: {{ . }}
livenessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- /* Number of pods under an autoscaler: dict "root" $ "name" NAME. Without one in the manifest an upgrade that turns
autoscaling on would remove it, and Kubernetes set 1. minReplicas would undo the autoscaler's work at each upgrade.
Nothing at the first installation, and where there is no cluster to ask (helm template): the autoscaler sets it then. */ -}}
{{- define "moca.liveReplicas" -}}
{{- $live := lookup "apps/v1" "Deployment" .root.Release.Namespace .name -}}
{{- if hasKey ($live.spec | default dict) "replicas" -}}
replicas: {{ $live.spec.replicas }}
{{- end -}}
{{- end -}}
