# JAVAC, JAR; FLAT: what SWIG wrote; SOURCE: this folder; LIBRARY, PLATFORM: the native library and what it is for;
# WORK: a folder to build in; OUT: the JAR; VERSION: of libkvc; WERROR: -Werror or nothing.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/dev/kvc/native/${PLATFORM} ${WORK}/META-INF/proguard)
# SWIG has no way to keep its constants from those who use the package.
set(constants ${FLAT}/dev/kvc/FlatConstants.java)
file(READ ${constants} text)
string(REPLACE "public interface" "interface" text "${text}")
file(WRITE ${constants} "${text}")
file(GLOB sources ${SOURCE}/dev/kvc/*.java ${FLAT}/dev/kvc/*.java)
# Class files of Java 8, which Android's tools read from API 26 on. Newer compilers call that obsolete: -options.
run(${JAVAC} --release 8 -encoding UTF-8 -Xlint:all,-options ${WERROR} -d ${WORK} ${sources})
file(COPY ${LIBRARY} DESTINATION ${WORK}/dev/kvc/native/${PLATFORM})
file(COPY ${SOURCE}/keep.pro DESTINATION ${WORK}/META-INF/proguard)
file(COPY ${SOURCE}/../../LICENSE ${SOURCE}/../../NOTICE DESTINATION ${WORK}/META-INF)
file(WRITE ${WORK}.manifest
  "Automatic-Module-Name: dev.kvc\nImplementation-Title: libkvc\nImplementation-Version: ${VERSION}\n")
# By name and of one date, so that two builds are equal. Not compressed: unpacking would be part of the first call.
file(GLOB_RECURSE entries RELATIVE ${WORK} ${WORK}/*)
list(SORT entries)
execute_process(COMMAND ${JAR} --create --no-compress --file ${OUT} --manifest ${WORK}.manifest
  --date=1980-01-01T00:00:02Z ${entries} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
