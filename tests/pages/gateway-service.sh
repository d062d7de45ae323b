# The service of 20.500.1 at handles.example.org, with the secret `SECRET`.
pkill -x handle-gateway
printf SECRET >secret
chmod 600 secret
hdl init /srv/handle --prefix 20.500.1 --address 192.0.2.10 --plain --secret-file secret --gateway-port 443 >/dev/null
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=handles.example.org \
    -addext subjectAltName=DNS:handles.example.org,DNS:hdl.example.org \
    -keyout /srv/handle/certificate-key.pem -out /srv/handle/certificate.pem 2>/dev/null
export CURL_CA_BUNDLE=/srv/handle/certificate.pem
source $CHECKOUT/tests/pages/service.sh
