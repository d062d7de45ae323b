# A service with the additions and the back end of the page.
hdl init /srv/handle --prefix 10.1045 --address 192.0.2.10 --plain >/dev/null
cat handle-admin-source.toml >>/srv/handle/handle-admin.toml
# The section is in the file already; one of its settings is new.
sed -i "/^\[forward\]/a $(grep ^sources handled-forward.toml)" /srv/handle/handled.toml
python3 back-end.py 2>back-end.log &
started $!
source $CHECKOUT/tests/pages/service.sh
