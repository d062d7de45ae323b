# Records to publish, and others that follow.
line() { echo "{\"handle\": \"$1\", \"values\": [{\"index\": 1, \"type\": \"URL\", \"data\": \"https://example.org/$1\"}]}"; }
for handle in 20.500.1/hello 20.500.1/other 10.1045/july95-arms; do line $handle; done >records.jsonl
line 20.500.1/third >changes.jsonl
