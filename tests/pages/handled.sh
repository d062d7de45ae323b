# `handled` serves, with the configuration of the page.
handled --config /etc/handled/handled.toml >handled.log 2>&1 &
started $!
