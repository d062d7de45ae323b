# The service that `docs/administration.md` begins with, and the key of its administrator.
source $CHECKOUT/tests/pages/no-service.sh
hdl init /srv/handle --prefix 10.1045 --address 192.0.2.10 --passphrase-file passphrase --secret-file secret >/dev/null
cp /srv/handle/admin-private.bin .
source $CHECKOUT/tests/pages/service.sh
