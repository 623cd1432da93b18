"""The files in the shared root with which users use object storage, and the script that writes them.

Keys are in none of the texts here: they come on the standard input of the script.
"""

from shlex import quote

FOLDER = "/var/lib/neocloud/storage"
AUTHORITY = "/run/neocloud/storage/ca.pem"
PROFILE = f"""\
# Written by the cloud. Keys for object storage, which it renews; what you have set up yourself stays in use.
case ${{AWS_CONFIG_FILE:-}} in
"" | {FOLDER}/*) # none, or that of the user who started this shell
    unset AWS_CONFIG_FILE
    neocloud_config={FOLDER}/${{UID:-$(id -u)}}.config
    if [ -r "$neocloud_config" ] && [ -z "${{AWS_PROFILE:-}}${{AWS_ACCESS_KEY_ID:-}}" ] &&
        [ ! -e "${{HOME:-}}/.aws/config" ] && [ ! -e "${{HOME:-}}/.aws/credentials" ]; then
        export AWS_CONFIG_FILE="$neocloud_config"
    fi
    unset neocloud_config
    ;;
esac
"""

DELIVER = r"""
set -eu
umask 022
root=$1 folder=$2 region=$3 endpoint=$4 authority=$5 profile=$6 rclone=$7
replace() { # file, owner, mode: by what standard input has, never through what lies there
    new=$(mktemp "$root$folder/.new.XXXXXX")
    cat >"$new"
    chmod "$3" "$new"
    chown "$2" "$new"
    mv -fT "$new" "$1"
}
mkdir -p "$root/etc/profile.d" "$root$folder"
chmod 755 "$root${folder%/*}" "$root$folder"
rm -f "$root$folder"/.new.* # of a run that was cut off
while read -r uid id secret ends; do
    key=$folder/$uid.json config=$folder/$uid.config
    if [ "$id" = - ]; then
        rm -f "$root$key" "$root$config"
        continue
    fi
    replace "$root$key" "$uid" 400 <<END
{"Version": 1, "AccessKeyId": "$id", "SecretAccessKey": "$secret", "Expiration": "$ends"}
END
    replace "$root$config" 0 644 <<END
[default]
region = $region
endpoint_url = $endpoint
ca_bundle = $authority
credential_process = cat $key
END
done
printf %s "$rclone" | replace "$root$folder/neo-rclone" 0 755
replace "$root$folder/rclone.config" 0 644 <<END
[default]
credential_process = cat $folder/\$(id -u).json
END
printf %s "$profile" | replace "$root/etc/profile.d/neocloud-storage.sh" 0 644
line='[ ! -r /etc/profile.d/neocloud-storage.sh ] || . /etc/profile.d/neocloud-storage.sh'
shells=$root/etc/bash.bashrc
if [ -f "$shells" ] && ! grep -qxF -e "$line" "$shells"; then
    { echo "$line"; cat "$shells"; } | replace "$shells" 0 644
fi
"""
"""Standard input has a line for each user: number, id of the key, secret, end; "-" for a key that goes. Users
may write to none of these folders, so none of them has put a link or another file where one is made."""


RCLONE = f"""\
#!/bin/sh
# Written by the cloud. rclone with your key for object storage, which it renews; the remote is called neo.
if [ "${{1:-}}" = mount ]; then
    echo "neo-rclone: nodes cannot mount; copy what a job reads, or use a bucket of a filesystem" >&2
    exit 1
fi
if [ ! -r "{FOLDER}/$(id -u).json" ]; then
    echo "neo-rclone: there is no key for you here; allow it with: neo slurm storage allow CLUSTER" >&2
    exit 1
fi
# rclone ends where an authority is named to AWS's clients. It trusts those that the node trusts.
unset AWS_CA_BUNDLE AWS_PROFILE AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
export AWS_CONFIG_FILE={FOLDER}/rclone.config AWS_SHARED_CREDENTIALS_FILE=/dev/null
[ -e "${{RCLONE_CONFIG:-${{HOME:-}}/.config/rclone/rclone.conf}}" ] || export RCLONE_CONFIG=/dev/null
export RCLONE_CONFIG_NEO_TYPE=s3 RCLONE_CONFIG_NEO_PROVIDER=Other RCLONE_CONFIG_NEO_ENV_AUTH=true
export RCLONE_CONFIG_NEO_FORCE_PATH_STYLE=true RCLONE_CONFIG_NEO_NO_CHECK_BUCKET=true
"""


def rclone_script(region: str, endpoint: str) -> str:
    """Return the program `neo-rclone`. It has no key, and needs rclone in the shared root."""
    where = f"export RCLONE_CONFIG_NEO_REGION={quote(region)} RCLONE_CONFIG_NEO_ENDPOINT={quote(endpoint)}"
    return f'{RCLONE}{where}\nexec rclone "$@"\n'
