# A PostgreSQL on this machine with the user `handle`, and records.
source $CHECKOUT/tests/pages/records.sh
bin=$(echo /usr/lib/postgresql/*/bin)
$bin/initdb -D /tmp/postgres -U handle -A trust -N >/dev/null
$bin/pg_ctl -D /tmp/postgres -o '-k /tmp -c listen_addresses=localhost -c fsync=off' -l postgres.log -w start >/dev/null
export PATH=$PATH:$bin PGHOST=/tmp PGUSER=handle
