# A service with its store in a file, and a database to which it moves.
hdl init /srv/handle --prefix 10.1045 --address 192.0.2.10 --plain >/dev/null
source $CHECKOUT/tests/pages/service.sh
dropdb handles
createdb handles
