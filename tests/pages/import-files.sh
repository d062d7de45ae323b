# A store, and the same record in each form.
source $CHECKOUT/tests/pages/records.sh
hdl store create store.redb
record=$(head -1 records.jsonl)
echo "{\"homedPrefixes\": [\"0.NA/20.500.1\"], \"handleRecords\": {\"20.500.1/hello\": $record}}" >export.json
cat >handles.sql <<'EOF'
-- PostgreSQL database dump
COPY public.nas (na) FROM stdin;
0.NA/10.1045
\.
COPY public.handles (idx, handle, type, data, ttl_type, ttl, "timestamp", refs, admin_read, admin_write, pub_read, pub_write) FROM stdin;
2	10.1045/B	TEXT	text	0	86400	1700000000		t	t	t	f
\.
EOF
gzip -k handles.sql
printf 'handle,index,type,data\n20.500.1/csv,1,URL,https://example.org/\n' >records.csv
echo 10.1046 >prefixes.txt
