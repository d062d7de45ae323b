# Files with the passphrases that the next commands name.
umask 077
cp passphrase old
printf '%s' 'another passphrase' | tee new passphrase-2 >/dev/null
