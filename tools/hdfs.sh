#!/usr/bin/env bash
# The folder of a real HDFS for tests, on standard output. It is fetched once with Maven, into the
# cache of e2e/cluster. It needs Debian's maven and openjdk-17-jre-headless.
#
#   tools/hdfs.sh          fetch it if need be
#   tools/hdfs.sh --built  only look; code 1: it is not there
#
# The folder has
#   bin/hadoop [fs|dfsadmin] …                  the command of Hadoop
#   bin/start FOLDER HTTP_PORT PORT [-format]   name node and data node as one process, until it is
#       killed. Port 0: any. FOLDER/details appears when they are ready, and FOLDER/conf.xml has
#       their addresses. Without -format the files of FOLDER are served again.
set -euo pipefail

version=3.4.2
cache=${FLEETJOB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetjob}
target=$cache/hdfs-$version
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

command -v "$java" >/dev/null || {
    echo "HDFS is not there: there is no Java (Debian: openjdk-17-jre-headless)" >&2
    exit 1
}
if [ -x "$target/bin/start" ]; then
    echo "$target"
    exit 0
fi
if [ "${1:-}" = --built ]; then
    echo "HDFS is not there: tools/hdfs.sh fetches it" >&2
    exit 1
fi
command -v mvn >/dev/null || {
    echo "HDFS cannot be fetched: there is no Maven (Debian: maven)" >&2
    exit 1
}
mkdir -p "$cache"
exec 9>"$cache/hdfs.lock"
flock 9
[ ! -x "$target/bin/start" ] || { echo "$target" && exit 0; }
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
mkdir "$temporary/home" "$temporary/home/bin" "$temporary/home/etc"

# Java has no JAXB since version 11; Hadoop's WebHDFS needs it.
cat >"$temporary/pom.xml" <<EOF
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.fleetjob</groupId>
  <artifactId>hdfs</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-minicluster</artifactId>
      <version>$version</version>
    </dependency>
    <dependency>
      <groupId>javax.xml.bind</groupId>
      <artifactId>jaxb-api</artifactId>
      <version>2.3.1</version>
    </dependency>
  </dependencies>
</project>
EOF
echo "Fetching HDFS into $target (90 MB)" >&2
(cd "$temporary" && nice -n 15 timeout 1800 mvn -B dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$temporary/home/lib") >"$cache/hdfs-fetch.log" 2>&1 || {
    grep -F '[ERROR]' "$cache/hdfs-fetch.log" | head -n 3 >&2
    echo "HDFS cannot be fetched (log: $cache/hdfs-fetch.log)" >&2
    exit 1
}

echo '<configuration/>' >"$temporary/home/etc/core-site.xml"
cat >"$temporary/home/bin/hadoop" <<'EOF'
#!/bin/sh
home=$(dirname "$(dirname "$0")")
class=org.apache.hadoop.fs.FsShell
[ "$1" != dfsadmin ] || class=org.apache.hadoop.hdfs.tools.DFSAdmin
shift
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m \
    -cp "$home/etc:$home/lib/*" "$class" "$@"
EOF
cat >"$temporary/home/bin/start" <<'EOF'
#!/bin/sh
home=$(dirname "$(dirname "$0")")
folder=$1 http=$2 port=$3
shift 3
rm -f "$folder/details"
cd "$folder" || exit 1
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m \
    -Dtest.build.data="$folder/data" -cp "$home/etc:$home/lib/*" \
    org.apache.hadoop.test.MiniDFSClusterManager -datanodes 1 -httpport "$http" -nnport "$port" \
    -writeConfig "$folder/conf.xml" -writeDetails "$folder/details" "$@" >"$folder/log" 2>&1
EOF
chmod 755 "$temporary/home/bin/hadoop" "$temporary/home/bin/start"
rm -rf "$target"
mv "$temporary/home" "$target"
echo "$target"
