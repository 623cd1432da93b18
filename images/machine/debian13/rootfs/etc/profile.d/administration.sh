# Everybody on a machine administers it: as /etc/environment for commands over ssh, which /etc/profile replaces in a login shell.
case ":$PATH:" in
    *:/usr/sbin:*) ;;
    *) PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" ;;
esac
