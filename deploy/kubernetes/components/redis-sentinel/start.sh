#!/bin/sh
# Start Redis, or the sentinel beside it, under the master that most sentinels know.
#   start.sh redis|sentinel
set -eu
umask 077
# The StatefulSet and its Service have one name: redis, or that of a release of Helm.
pod="$(hostname)"
name="${pod%-*}"
hosts="$name-0.$name $name-1.$name $name-2.$name"
me="$pod.$name"
data=/data
password_file=/run/secrets/moca/redis_password
grep -q '[^[:space:]]' "$password_file"

# The password as a quoted word of a Redis configuration.
quoted() {
  sed 's/^[[:space:]]*//; s/[[:space:]]*$//; s/["\\]/\\&/g; s/.*/"&"/' "$password_file"
}

# What the sentinels say; none there: what this one last knew; the first start: the first pod.
master() {
  {
    for host in $hosts; do
      timeout 2 redis-cli -h "$host" -p 26379 --raw sentinel get-master-addr-by-name moca 2>/dev/null |
        grep -x "$name-[0-9]*\.$name" || true
    done | sort | uniq -c | sort -rn | sed 's/^ *[0-9]* //'
    sed -n 's/^sentinel monitor moca \([^ ]*\) .*/\1/p' "$data/sentinel.conf" 2>/dev/null || true
    echo "$name-0.$name"
  } | head -n 1
}

case "$1" in
  redis)
    master="$(master)"
    {
      cat /etc/moca/redis.conf
      printf 'requirepass %s\nmasterauth %s\n' "$(quoted)" "$(quoted)"
      echo "replica-announce-ip $me"
      # A master that no replica follows, such as one that is cut off, accepts nothing: what a failover
      # may lose is bounded by the lag.
      echo "min-replicas-to-write 1"
      echo "min-replicas-max-lag 10"
      [ "$master" = "$me" ] || echo "replicaof $master 6379"
    } > /tmp/redis.conf
    exec redis-server /tmp/redis.conf
    ;;
  sentinel)
    conf="$data/sentinel.conf"
    if ! [ -s "$conf" ]; then
      master="$(master)"
      {
        echo "port 26379"
        echo "dir /tmp"
        echo "sentinel resolve-hostnames yes"
        echo "sentinel announce-hostnames yes"
        echo "sentinel announce-ip $me"
        echo "sentinel monitor moca $master 6379 2"
        echo "sentinel down-after-milliseconds moca 5000"
        echo "sentinel failover-timeout moca 30000"
        echo "sentinel parallel-syncs moca 1"
      } > "$conf.new"
    else
      grep -v 'sentinel auth-pass ' "$conf" > "$conf.new"
    fi
    # As it is now; a sentinel writes it back without its quotes.
    printf 'sentinel auth-pass moca %s\n' "$(quoted)" >> "$conf.new"
    mv "$conf.new" "$conf"
    exec redis-server "$conf" --sentinel
    ;;
esac
