#!/usr/bin/env bash
# Run Ceph's S3 gateway on one OSD until SIGTERM: mon, mgr, osd (BlueStore on a file) and radosgw, on loopback.
#
#   ACCESS_KEY=... SECRET_KEY=... bash radosgw.sh FOLDER PORT
#
# Debian packages: ceph-mon ceph-mgr ceph-osd radosgw. No systemd is needed. FOLDER is empty, and on the disk to be
# measured. Everything is durable: BlueStore flushes each write before it is answered.
set -euo pipefail
folder=$1 port=$2 mon_port=$(($2 + 1))
export CEPH_CONF=$folder/ceph.conf
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 0' TERM INT

cat >"$CEPH_CONF" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:127.0.0.1:$mon_port]
public network = 127.0.0.0/8
ms bind msgr1 = false
keyring = $folder/keyring
run dir = $folder
log file = $folder/\$name.log
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = 8589934592
mon allow pool size one = true
mon data = $folder/mon
mgr data = $folder/mgr
osd data = $folder/osd
[client.radosgw]
rgw frontends = beast endpoint=127.0.0.1:$port
rgw enable usage log = true
CONF
mkdir "$folder"/{mon,mgr,osd}

# One keyring for all: the monitor takes over what is in it.
for name in mon. client.admin mgr.a osd.0 client.radosgw; do
    ceph-authtool "$folder/$name.new" --create-keyring --gen-key --name "$name" \
        --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    cat "$folder/$name.new" >>"$folder/keyring"
done
ceph-mon --mkfs --id a --keyring "$folder/keyring" --mon-initial-members a --public-addr "v2:127.0.0.1:$mon_port"
ceph-mon --foreground --id a --public-addr "v2:127.0.0.1:$mon_port" &
ceph-mgr --foreground --id a &
osd=$(cat /proc/sys/kernel/random/uuid)
ceph osd new "$osd" >/dev/null
ceph osd crush add osd.0 1.0 root=default host=bench >/dev/null
ceph-osd --id 0 --mkfs --osd-uuid "$osd" >/dev/null
ceph-osd --foreground --id 0 &
radosgw-admin user create --uid bench --display-name bench \
    --access-key "$ACCESS_KEY" --secret-key "$SECRET_KEY" >/dev/null
radosgw --foreground --name client.radosgw &
wait
