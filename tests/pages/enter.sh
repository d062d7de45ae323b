# Run by root in namespaces of its own (network, mounts, processes): makes the place in which a page
# is run, and runs `$1/run.sh` there as a user without rights. `$1` has `page`, the empty directory,
# and the blocks; `$2` has the programs, `$3` is the checkout.
set -eu
mount --make-rprivate /
ip link set lo up
# Addresses of the documents. Also ports below 1024 are for everyone.
for address in 192.0.2.1 192.0.2.10; do ip address add $address/32 dev lo; done
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start

# Directories that pages name are empty and writable; the rest is as it is on the machine.
mount -t tmpfs -o mode=755 pages /media
cd /media
mkdir test built checkout etc programs
mount --bind "$1" test
mount --bind "$2" built
mount --bind "$3" checkout
cp -a /etc/. etc
mount --bind etc /etc
for directory in /home /mnt /run /srv /tmp /var/cache /var/lib /var/log; do
    mount -t tmpfs -o mode=1777 pages $directory
done
# The users and the group of the pages are the one that types.
for name in handled handle-admin handle-gateway handle-cache handle-fetch handle-sets; do
    sed -i "/^$name:/d" /etc/passwd /etc/group
    echo "$name:x:10641:10641::/home/me:/bin/bash" >>/etc/passwd
    echo "$name:x:10641:" >>/etc/group
done
cat >/etc/hosts <<'EOF'
127.0.0.1 localhost
192.0.2.10 handles.example.org admin.example.org hdl.example.org db.example
192.0.2.1 primary.example.org mirror.example
EOF
for directory in handled handle-admin handle-gateway handle-cache haproxy ssl/hdl; do
    mkdir -p /etc/$directory
    chmod 777 /etc/$directory
done
mkdir -m 777 /home/me /run/handled /run/handle-admin /run/handle-gateway /run/handle-cache /run/handle-fetch

for program in built/hdl built/handle* built/fuzz-all; do
    if [ -x "$program" ] && [ -f "$program" ]; then ln -s "/media/$program" programs/; fi
done
rm programs/hdl
cp checkout/tests/pages/programs/* programs/
exec setpriv --reuid 10641 --regid 10641 --clear-groups bash /media/test/run.sh
