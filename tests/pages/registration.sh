# The settings of the page are in force, and an applicant has the archive of a new service.
source $CHECKOUT/tests/pages/restart.sh
mkdir -p /var/lib/handle-gateway
restart handle-gateway
hdl init applicant --prefix 10.1045.7 --address 192.0.2.1 --plain >/dev/null
cp applicant/sitebndl.zip .
ln -s /srv/handle/run/handle-gateway.sock /run/handle-gateway/control.sock
