# An index of URLs, which callers over HTTP may ask.
source $CHECKOUT/tests/pages/restart.sh
printf '[index]\ntypes = ["URL"]\n' >>/srv/handle/handle-admin.toml
sed -i 's/^\[admin\]/&\nsearch = true/' /srv/handle/handle-gateway.toml
restart handle-admin
restart handle-gateway
