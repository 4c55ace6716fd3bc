# bash completion for fleetjob. Commands and options are asked of the program itself, so they are
# always those of the version that is installed.

_fleetjob() {
    local cur prev program command words
    cur=${COMP_WORDS[COMP_CWORD]}
    prev=${COMP_WORDS[COMP_CWORD - 1]}
    program=${COMP_WORDS[0]}
    command=${COMP_WORDS[1]-}
    COMPREPLY=()

    if [ "$COMP_CWORD" -eq 1 ] || { [ "$COMP_CWORD" -eq 2 ] && [ "$command" = help ]; }; then
        words=$("$program" help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$cur")
        return
    fi
    case $prev in
        --to) words="prototxt yaml json" ;;
        --schema) words="2.0 2.1" ;;
        --policy) words="full paddle" ;;
        --optimizer) words="sgd momentum adam adamw lars lamb" ;;
        --format) words="svg png" ;;
        -o)
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;
        --output)
            case $command in
                plan) words="table json" ;;
                curve)
                    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                    return
                    ;;
                *) words="yaml json" ;;
            esac
            ;;
        --search) words="full dynamic_programming" ;;
        --world-size | --rank | --workers | --steps | --devices | --memory) return ;;
        --data | --checkpoint | --curve | --state-file | --links | --save)
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;
        *)
            if [[ $cur == -* ]]; then
                words=$("$program" "$command" --help 2>/dev/null | grep -oE -- '--[a-z][a-z_-]*' | sort -u)
                words="$words --help"
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                return
            fi
            ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -o filenames -F _fleetjob fleetjob kubectl-fleetjob
