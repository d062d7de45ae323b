# Another address for certificates, and the key of the administrator.
source $CHECKOUT/tests/pages/restart.sh
printf '[tls.client_certificates]\nlisten = ["[::]:8443"]\n' >>/srv/handle/handle-gateway.toml
cp /srv/handle/admin-private.bin admpriv.bin
restart handle-gateway
