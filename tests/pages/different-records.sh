# Records, and a set in which one differs and one is missing.
line() { echo "{\"handle\": \"$1\", \"values\": [{\"index\": 1, \"type\": \"URL\", \"data\": \"$2\"}]}"; }
{ line 10.1045/JULY95-ARMS a; line 10.1045/MAY99-PAYETTE b; line 10.1045/SAME c; } >backup.jsonl
{ line 10.1045/JULY95-ARMS x; line 10.1045/SAME c; } | hdl snapshot publish /var/lib/handled/snapshot -
