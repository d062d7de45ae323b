# A server of 10.1000/1.
echo '{"handle": "10.1000/1", "values": [{"index": 1, "type": "URL", "data": "https://example.org/1"}]}' |
    hdl snapshot publish set -
handled --snapshot set --listen 192.0.2.1:2641 >handled.log 2>&1 &
started $!
