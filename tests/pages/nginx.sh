# The gateway is where nginx looks for it, and nginx has the configuration of the page.
source $CHECKOUT/tests/pages/restart.sh
sed -i 's/:443"/:8000"/' /srv/handle/handle-gateway.toml
restart handle-gateway
mkdir -p /etc/ssl/hdl /var/cache/nginx /var/log/nginx
cp /srv/handle/certificate.pem /etc/ssl/hdl/fullchain.pem
cp /srv/handle/certificate-key.pem /etc/ssl/hdl/privkey.pem
for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path /tmp/nginx-$kind;"; done >temporary.conf
echo "pid nginx.pid; error_log nginx.log; events {} http { access_log off; include $PWD/temporary.conf; include $PWD/nginx.conf; }" >all.conf
nginx -p "$PWD" -c "$PWD/all.conf"
