# A service of `hdl init` with two kept generations; the commands are typed in its directory.
hdl init /srv/handle --prefix 10.1045 --address 192.0.2.10 --plain >/dev/null
source $CHECKOUT/tests/pages/service.sh
cd /srv/handle
hdl control keep --socket run/handle-admin.sock >/dev/null
hdl handle create 10.1045/x 1:URL=x --server 192.0.2.10:2642 --auth 300:10.1045/ADMIN --key admin-private.bin
sleep 1
hdl control keep --socket run/handle-admin.sock >/dev/null
