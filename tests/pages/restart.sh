# restart PROGRAM: for settings that a reload does not apply.
restart() {
    pkill -x "$1"
    while pgrep -x "$1" >/dev/null; do sleep 0.05; done
    "$1" --config "/srv/handle/$1.toml" >>service.log 2>&1 &
    started $!
}
