# A service that asks a simulated DSpace, by the settings of the block.
source $CHECKOUT/tests/pages/no-service.sh
cat >dspace.py <<'EOF'
import http.server

class DSpace(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_known = self.path == "/server/resolve/20.500.12345/42"
        body = b'["https://dspace.example/handle/20.500.12345/42"]' if is_known else b"null"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer(("127.0.0.1", 8081), DSpace).serve_forever()
EOF
python3 dspace.py 2>dspace.log &
started $!
hdl init /srv/handle --prefix 20.500.12345 --address 192.0.2.10 --plain >/dev/null
sed 's|https://dspace.example|http://127.0.0.1:8081|' "$BLOCK" >>/srv/handle/handle-admin.toml
sed -i '/^\[forward\]/a sources = ["20.500.12345"]' /srv/handle/handled.toml
source $CHECKOUT/tests/pages/service.sh
hdl resolve 20.500.12345/42 --server 127.0.0.1 | grep https://dspace.example/handle/20.500.12345/42
if /media/built/hdl resolve 20.500.12345/43 --server 127.0.0.1; then exit 1; fi
