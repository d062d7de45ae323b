# A server whose records differ from the set that answers are compared with.
record() { echo "{\"handle\": \"10.5072/x\", \"values\": [{\"index\": 1, \"type\": \"URL\", \"data\": \"$1\"}]}"; }
record a | hdl snapshot publish set -
record b | hdl snapshot publish served -
handled --snapshot served --listen 127.0.0.1:2641 >handled.log 2>&1 &
started $!
handle-loadgen run --target 127.0.0.1:2641 --snapshot set --verify --rate 100 --duration 1s \
    --mismatches wrong.jsonl --quiet || true
test -s wrong.jsonl
