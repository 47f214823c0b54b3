#!/bin/busybox sh
# The guest's first and only process: loads the modules, then runs what the host asks for over a port of
# virtio-serial (an emulated UART now and then loses an interrupt under load, and is silent from then on).
# A request is one line, `RUN <base64 of a script>`; the answer is what the script prints, then `@@done <exit code>`.
/bin/busybox mkdir -p /bin /sbin /usr/bin /usr/sbin /lib64 /etc
/bin/busybox --install -s
export PATH=/tools/bin:/bin:/sbin:/usr/bin:/usr/sbin LD_LIBRARY_PATH=/tools/lib HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
ln -s /proc/mounts /etc/mtab
ln -s /proc/self/fd /dev/fd
ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/ld-linux-x86-64.so.2
while read -r module; do
    insmod "/modules/$module" || echo "init: $module does not load"
done </modules/order
# The disk of tools is known by its serial number, wherever it was found.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    for disk in /sys/block/vd*; do
        [ "$(cat "$disk/serial" 2>/dev/null)" = lamina-tools ] && tools=/dev/${disk##*/}
    done
    [ -n "$tools" ] && break
    sleep 0.2
done
[ -n "$tools" ] && mount -t ext4 -o ro "$tools" /tools

port=
for _ in 1 2 3 4 5 6 7 8 9 10; do
    for found in /sys/class/virtio-ports/*; do
        [ "$(cat "$found/name" 2>/dev/null)" = lamina-control ] && port=/dev/${found##*/}
    done
    [ -n "$port" ] && break
    sleep 0.2
done
exec 3<>"$port"
echo '@@ready' >&3
while :; do
    # An end of file is a host that does not listen yet.
    read -r word script <&3 || sleep 0.1
    [ "$word" = RUN ] || continue
    echo "$script" | base64 -d >/tmp/script
    sh /tmp/script </dev/null >&3 2>&1
    printf '\n@@done %s\n' "$?" >&3
done
