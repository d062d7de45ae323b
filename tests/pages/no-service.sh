# The service of `hdl init` is stopped and removed, so that the next block makes another.
pkill -x 'handle.*' || true
while pgrep -x 'handle.*' >/dev/null; do sleep 0.05; done
rm -rf /srv/handle
