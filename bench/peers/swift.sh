#!/usr/bin/env bash
# Run OpenStack Swift with its S3 interface until SIGTERM: proxy, account, container and object server, on loopback.
#
#   ACCESS_KEY=... SECRET_KEY=... bash swift.sh FOLDER PORT
#
# Debian packages: swift-proxy swift-account swift-container swift-object memcached. No systemd is needed. FOLDER is
# empty, and on the disk to be measured: one device, one replica, one worker each.
set -euo pipefail
folder=$1 port=$2
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 0' TERM INT

mkdir -p "$folder/devices/d1" "$folder/cache" /etc/swift
cat >/etc/swift/swift.conf <<CONF
[swift-hash]
swift_hash_path_prefix = bench
swift_hash_path_suffix = bench
[storage-policy:0]
name = one
default = yes
CONF
number=1
for kind in account container object; do
    builder=$folder/$kind.builder
    swift-ring-builder "$builder" create 6 1 1 >/dev/null
    swift-ring-builder "$builder" add "r1z1-127.0.0.1:$((port + number))/d1" 1 >/dev/null
    swift-ring-builder "$builder" rebalance >/dev/null
    cp "$folder/$kind.ring.gz" /etc/swift/
    cat >"$folder/$kind.conf" <<CONF
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $((port + number))
devices = $folder/devices
mount_check = false
workers = 0
log_level = ERROR
log_address = /dev/null
[pipeline:main]
pipeline = $kind-server
[app:$kind-server]
use = egg:swift#$kind
CONF
    "swift-$kind-server" "$folder/$kind.conf" &
    number=$((number + 1))
done
memcached --user swift --listen 127.0.0.1 --port $((port + 4)) &
cat >"$folder/proxy.conf" <<CONF
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $port
workers = 0
log_level = ERROR
log_address = /dev/null
[pipeline:main]
pipeline = catch_errors cache s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:$((port + 4))
[filter:s3api]
use = egg:swift#s3api
location = eu-north1
[filter:tempauth]
use = egg:swift#tempauth
user_bench_owner = $SECRET_KEY .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
CONF
chmod 600 "$folder/proxy.conf"
swift-proxy-server "$folder/proxy.conf" &
wait
