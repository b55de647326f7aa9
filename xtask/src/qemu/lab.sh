# An experiment of the lab, on the guest's one CPU or on `cpu`: `id`, with cells as in `only`, windows of `window` ms, and as many
# `pairs` in each cell. `more` edits the experiment. Prints the report, and the document of the run.
linerate-lab lab show "$id" --toml >experiment.toml
sed -i -e 's/^cpus = .*/cpus = "one"/' -e "s/^window = .*/window = \"${window}ms\"/" -e "s/^looks = .*/looks = [$pairs]/" ${more:+-e "$more"} experiment.toml
[ "$only" = all ] && only= || only="--only $only"
{
    linerate-lab lab run experiment.toml --cpu "${cpu:-0}" $only 2>&1
    echo $? >status
} | sed 's/^/guest: text /'
status=$(cat status)
# With 4 the run is inconclusive, with 5 this kernel cannot run the experiment.
case $status in
0 | 4) ;;
5) echo "guest: n/a $id|exit status $status" ;;
*) echo "guest: wrong $id|exit status $status" ;;
esac
gzip -9 -c lab/*/run.json | xxd -p -c 128 | sed 's/^/guest: hex /'
echo "guest: done 0"
poweroff -f
