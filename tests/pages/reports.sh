# Reports of two runs on each side.
for name in before before-2 after after-2; do
    handle-loadgen run --target 127.0.0.1:2641 --snapshot served --rate 100 --duration 4s \
        --json $name.json --quiet || true
done
