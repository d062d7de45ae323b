# The settings that the page has added are in force, and a record has the URL that it looks for.
source $CHECKOUT/tests/pages/restart.sh
restart handle-admin
hdl handle create 10.1045/report 1:URL=https://example.org/report.pdf 100:HS_ADMIN=300:10.1045/ADMIN \
    --auth 300:10.1045/ADMIN --key admin-private.bin --passphrase-file passphrase
sleep 1
