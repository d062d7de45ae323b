# The first record has reached all servers.
for _ in $(seq 100); do
    if handle-lab look --dir /tmp/replicas >/dev/null; then break; fi
    sleep 0.2
done
