#!/bin/sh
# Installs what the tests use of the system's packages and this machine lacks, where it may; else says so and goes on.
missing=""
for pair in bindfs:bindfs rsync:rsync mkfs.btrfs:btrfs-progs setpriv:util-linux chromium:chromium nginx:nginx-light ip:iproute2; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests that need${missing} are skipped: install these packages to run them" >&2
    exit 0
fi
apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    echo "could not install${missing}: the tests that need them are skipped" >&2
exit 0
