# shellcheck shell=bash
# What tests/check and tests/run share. Sourced, not run: defines functions and changes to the
# root of the workspace.
#
# A stage that fails does not stop the next one, so that one run shows everything that is wrong.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# No snapshot and no golden file is written by a run of the tests.
export INSTA_UPDATE=no
unset SUBLET_GOLDEN
# A cold build gains nothing from incremental compilation and pays for it in time and disk.
if [ "${CI:-}" = true ]; then
    export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
fi

stage_lines=()
left_out_lines=()
failed_stages=0
started_at=$SECONDS

# stage NAME COMMAND... : runs the command, remembers its result and how long it took.
stage() {
    local name=$1 begin=$SECONDS result=ok
    shift
    printf '\n==> %s: %s\n' "$name" "$*"
    if ! "$@"; then
        result=FAILED
        failed_stages=$((failed_stages + 1))
    fi
    stage_lines+=("$(printf '%-28s %-7s %5d s' "$name" "$result" $((SECONDS - begin)))")
}

# left_out TEXT : remembers what this run did not do, and why.
left_out() {
    left_out_lines+=("$1")
}

# summary : prints the stages and what was left out; fails if a stage did.
summary() {
    printf '\n==> summary\n'
    printf '%s\n' "${stage_lines[@]}"
    printf '%-28s %-7s %5d s\n' 'all together' '' $((SECONDS - started_at))
    local line
    for line in ${left_out_lines[@]+"${left_out_lines[@]}"}; do
        printf 'left out: %s\n' "$line"
    done
    [ "$failed_stages" -eq 0 ]
}
