# The records that the batch file changes.
for name in second third fourth; do
    hdl handle create 10.1045/$name 1:URL=https://example.org/ 2:EMAIL=a@example.org 3:DESC=x \
        100:HS_ADMIN=300:10.1045/ADMIN --passphrase-file passphrase
done
