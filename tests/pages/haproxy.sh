# HAProxy in place of nginx.
nginx -p "$PWD" -c "$PWD/all.conf" -s stop
while pgrep -x nginx >/dev/null; do sleep 0.05; done
cat /etc/ssl/hdl/fullchain.pem /etc/ssl/hdl/privkey.pem >/etc/haproxy/hdl.pem
printf 'defaults\n    mode http\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n' | cat - haproxy.conf >all-haproxy.conf
haproxy -D -p haproxy.pid -f all-haproxy.conf
