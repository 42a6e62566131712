# The commit that is being built, for --version, run directories and reports. Asked again at every build, so that it is never stale;
# the header is only touched when the answer changes.
if(CMAKE_SCRIPT_MODE_FILE)
  set(BHYT_COMMIT "unknown")
  execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --exclude=* OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(BHYT_COMMIT ${commit})
  endif()
  configure_file(${SOURCE_DIR}/cmake/version.h.in ${OUTPUT})
  return()
endif()

set(version_header ${PROJECT_BINARY_DIR}/generated/bhyt_version.h)
add_custom_target(bhyt_version
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DOUTPUT=${version_header} -DPROJECT_VERSION=${PROJECT_VERSION}
          -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${version_header} COMMENT "")
include_directories(${PROJECT_BINARY_DIR}/generated)
