# The site record that the configuration names, and a published set.
source $CHECKOUT/tests/pages/records.sh
hdl init site --prefix 20.500.1 --address 192.0.2.10 --plain >/dev/null
cp site/siteinfo.json /etc/handled/
hdl snapshot publish /var/lib/handled/snapshot records.jsonl
