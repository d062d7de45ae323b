# A set that is signed with the key of the page.
source $CHECKOUT/tests/pages/records.sh
hdl snapshot publish /var/lib/handled/snapshot records.jsonl --key publisher-private.bin
