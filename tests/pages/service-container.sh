# What the image runs, without a container: its command, until its health is good.
python3 - "$BLOCK" <<'EOF'
import json, re, shlex, sys
text = open(sys.argv[1]).read().replace("\\\n", " ")
health, command = re.findall(r"CMD (\[.*?\])", text)
open("health.sh", "w").write(shlex.join(json.loads(health)) + "\n")
open("command.sh", "w").write("exec " + shlex.join(json.loads(command)) + "\n")
EOF
pkill -x handle-lab || true
# As there, without the variables of the page.
clean() { env -i PATH=/media/built:/usr/bin:/bin "$@"; }
sleep infinity | clean sh command.sh >container.log 2>&1 &
for _ in $(seq 100); do
    if clean sh health.sh && [ -s /tmp/handles.env ]; then break; fi
    sleep 0.2
done
cat container.log
(
    set -a
    . /tmp/handles.env
    curl --fail "$HANDLE_HTTP_URL/api/handles/$HANDLE_PREFIX/ADMIN"
)
