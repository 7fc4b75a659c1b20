#!/bin/sh
# Starts a program of this folder in the foreground; SIGTERM ends the program. Any supervisor can run this script, and must run it again
# when the program ends with another code than 0 or 2. Settings, such as DPFED_PORT, are in .env.
cd "$(dirname "$0")/.." || exit 1
{% for name, value in settings.items() %}
{{ name }}="{{ value }}"; export {{ name }}
{% endfor %}
{% for name, value in flower.items() %}
{{ name }}={{ value }}; export {{ name }}
{% endfor %}
if [ -f .env ]; then set -a; . ./.env; set +a; fi
umask 077
PATH="$PWD/venv/bin:$PATH"; export PATH
exec {{ command }}
