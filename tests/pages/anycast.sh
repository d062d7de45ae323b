# Run by root in namespaces of its own: a router and two servers that announce one address, with the
# files `bird.conf` and `health` of the page in the directory `$1`. `$2` has the programs.
set -eu
mount -t tmpfs pages /run
cd "$1"
PATH=$2:$PATH
ip netns add router
ip -n router link set lo up
echo '{"handle": "10.1000/1", "values": [{"index": 1, "type": "URL", "data": "https://example.org/1"}]}' >records.jsonl
hdl snapshot publish set records.jsonl >/dev/null

neighbors=
for number in 1 2; do
    place=server-$number
    mkdir $place
    sed "s/10\.0\.1\./10.0.$number./" bird.conf >$place/bird.conf
    # `birdc` of the script finds the daemon of its own namespace.
    sed "s|birdc |birdc -s $PWD/$place/bird.ctl |" health >$place/health
    ip netns add $place
    ip link add to-$number netns router type veth peer name uplink netns $place
    ip -n router address add 10.0.$number.1/24 dev to-$number
    ip -n router link set to-$number up
    ip -n $place address add 10.0.$number.2/24 dev uplink
    ip -n $place address add 192.0.2.53/32 dev lo
    ip -n $place link set lo up
    ip -n $place link set uplink up
    ip -n $place route add default via 10.0.$number.1
    {
        echo "snapshot = \"$PWD/set\""
        echo 'listen = ["192.0.2.53:2641"]'
        echo "control = \"$PWD/$place/control.sock\""
        # The load is from one address, and about one handle.
        printf '[rate_limit]\nexempt = ["10.0.0.0/16"]\n'
        printf '[observe]\nhttp = "127.0.0.1:9641"\n'
    } >$place/handled.toml
    ip netns exec $place handled --allow-root --config $place/handled.toml >$place/handled.log 2>&1 &
    echo $! >$place/handled.pid
    ip netns exec $place bird -c $place/bird.conf -s $place/bird.ctl -P $place/bird.pid
    # The first server is the nearer one.
    neighbors="$neighbors protocol bgp server_$number {
        local 10.0.$number.1 as 64512; neighbor 10.0.$number.2 as 64513;
        ipv4 { import filter { bgp_local_pref = $((300 - number)); accept; }; export none; }; }"
done
echo "router id 10.0.0.1; protocol device {} protocol kernel { ipv4 { export all; }; } $neighbors" >router.conf
ip netns exec router bird -c router.conf -s router.ctl -P router.pid

# reached_by N: waits until the address is reached at this server; prints the milliseconds.
reached_by() {
    began=$(date +%s%N)
    until ip -n router route show 192.0.2.53 | grep -q "via 10.0.$1.2 "; do
        [ $(($(date +%s%N) - began)) -lt 20000000000 ] || { echo "not reached by server $1" >&2; exit 1; }
        sleep 0.02
    done
    echo $((($(date +%s%N) - began) / 1000000))
}
for number in 1 2; do
    ip netns exec server-$number sh server-$number/health &
    echo $! >server-$number/health.pid
done
reached_by 1 >/dev/null
sleep 2

# A planned withdrawal under load: first the script ends, then the server.
ip netns exec router handle-loadgen run --target 192.0.2.53:2641 --snapshot set --rate 200 --duration 8s --json report.json \
    --quiet >load.log 2>&1 &
load=$!
sleep 2
kill "$(cat server-1/health.pid)"
planned=$(reached_by 2)
echo "planned: withdrawn after $planned ms"
sleep 2
hdl control drain --socket server-1/control.sock >/dev/null
# On busy cores, the times of a run do not count; the answers do.
wait $load || true
cat load.log

# The server comes back, and is killed.
ip netns exec server-1 handled --allow-root --config server-1/handled.toml >>server-1/handled.log 2>&1 &
server=$!
ip netns exec server-1 sh server-1/health &
reached_by 1 >/dev/null
sleep 1
kill -9 $server
killed=$(reached_by 2)
echo "killed: withdrawn after $killed ms"
