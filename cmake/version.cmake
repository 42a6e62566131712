# The commit that is being built, for --version, run directories and reports.
find_package(Git QUIET)
set(BHYT_COMMIT "unknown")
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${PROJECT_SOURCE_DIR} rev-parse --short HEAD OUTPUT_VARIABLE BHYT_COMMIT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT BHYT_COMMIT)
  set(BHYT_COMMIT "unknown")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${PROJECT_BINARY_DIR}/generated/bhyt_version.h)
include_directories(${PROJECT_BINARY_DIR}/generated)
