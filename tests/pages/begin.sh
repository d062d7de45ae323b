# Read by bash before the blocks of a page.
set -Eeuo pipefail
export HOME=/home/me PATH=/media/programs:$PATH CHECKOUT=/media/checkout
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
cd /media/test/page

# started PID: waits until a process that a block started in the background listens.
started() {
    for _ in $(seq 50); do
        if ss -H -lntup | grep -q "pid=$1,"; then return; fi
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
}

# printed FILE PID: waits until a block in another terminal has printed something.
printed() {
    for _ in $(seq 600); do
        if [ -s "$1" ]; then return; fi
        kill -0 "$2" || { echo 'the block in another terminal ended'; return 1; }
        sleep 0.1
    done
}
