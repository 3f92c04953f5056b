#!/bin/sh
# Makes the passwords of docker-compose.yml in deploy/secrets, which git does not see. What is there already stays: a
# database keeps the password that it was made with.
set -eu
umask 022
cd "$(dirname "$0")"
# Compose mounts files of the host as they are, and the users of the containers are others than you: the files can be
# read by all, and the folder by nobody but you.
mkdir -p secrets
chmod 700 secrets

password() {
    [ -s "secrets/$1" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$1"
}

password store_password
password temporal_store_password
password grafana_password
printf 'postgresql://sendonce:%s@store:5432/sendonce\n' "$(cat secrets/store_password)" > secrets/database_url
echo "The passwords are in $(pwd)/secrets."
