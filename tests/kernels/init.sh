#!/bin/busybox sh
# The first process of a virtual machine: runs memwatch's tests, prints the results, and powers the machine off.
bb=/bin/busybox
[ -x $bb ] || bb=/usr/bin/busybox
export PATH=/bin:/usr/bin:/sbin HOME=/root NO_COLOR=1 TERM=dumb
$bb mkdir -p /proc /sys /dev /tmp /run /bin /sbin
$bb --install -s /sbin
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
$bb mount -t devtmpfs dev /dev
$bb mount -t tmpfs tmp /tmp
$bb mount -t tmpfs run /run
$bb mount -t cgroup2 cgroup /sys/fs/cgroup
$bb mount -t bpf bpf /sys/fs/bpf
$bb mount -t tracefs trace /sys/kernel/tracing
cd /memwatch || exit 1
echo "KERNEL $($bb uname -r)"
export MEMWATCH_BIN=/memwatch/memwatch
. /memwatch/settings
doctor="/memwatch/memwatch doctor --nvml-lib $GPUSIM_PUSH/lib/libnvidia-ml.so.1 --libcuda $GPUSIM_PUSH/lib/libcuda.so.1"
$doctor 2>&1 | $bb tee /tmp/doctor
echo "FRAMEWORKS $($bb sed -n 's/^ *[^ ]*  *framework_programs  *//p' /tmp/doctor)"
echo "MECHANISM $($doctor --json 2>/dev/null | $bb sed -n 's/.*"mechanism": *"\([^"]*\)".*/\1/p' | $bb head -n 1)"
/memwatch/integration --test-threads=1 "$TESTS" 2>&1
echo ENDED
$bb poweroff -f
