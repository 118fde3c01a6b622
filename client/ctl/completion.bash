# shellcheck shell=bash
# Completion of ckksctl. Commands and options are what the program itself lists, so that this file never lags behind it.
_ckksctl() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]} found
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        found=$("$program" --help 2>/dev/null | awk '!NF { part++ } NF && part == 1 { print $1 }')
    elif [[ $word == -* ]]; then
        found=$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE '^ {2,6}(-[a-zA-Z?], )?--[a-z-]+=?' | grep -oE -- '--[a-z-]+=?')
    elif [[ $before == --profile || (${COMP_WORDS[1]} == profile && $COMP_CWORD -eq 2) ]]; then
        found=$("$program" profile 2>/dev/null | sed -n 's/^[* ] \([^ ]\{1,\}\) .*/\1/p')
    fi
    if [[ -n $found ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$found" -- "$word")
        if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _ckksctl ckksctl
