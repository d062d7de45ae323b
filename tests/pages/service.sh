# The service of `hdl init` is started.
for program in handle-admin handled handle-gateway; do
    $program --config /srv/handle/$program.toml >>service.log 2>&1 &
    started $!
done
